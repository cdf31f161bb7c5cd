"""The shell medium: an entity's programs run in bash, confined by bubblewrap or Landlock."""

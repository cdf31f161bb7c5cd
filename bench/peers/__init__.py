"""`python -m bench peers`: the same work by this project and by other libraries, side by side in one run."""

"""Work that happens later: schedules, timers, queues of submissions, and deadlines of entities."""

"""The public interface: `Runtime`, `Entity`, `Episode`, receipts, the blocking forms, and the result of `inspect`."""

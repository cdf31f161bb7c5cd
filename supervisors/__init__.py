"""OTP supervision trees on anyio."""

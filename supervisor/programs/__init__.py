"""What runs in processes of its own, beside a supervisor."""

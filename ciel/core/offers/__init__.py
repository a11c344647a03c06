"""What workers offer to tasks: named resources and labels."""

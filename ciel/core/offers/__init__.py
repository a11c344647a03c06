"""Named resources and labels, which workers offer to tasks."""

"""What programs use in place of the standard library's executors and pools."""

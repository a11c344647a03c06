"""Values about workers that the master and the workers share."""

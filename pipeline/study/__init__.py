"""Studies: strategies x tasks x seeds as ordinary runs that share their artifacts, and what comes of them."""

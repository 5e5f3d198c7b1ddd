"""Tables and figures from the records alone; never imports torch."""

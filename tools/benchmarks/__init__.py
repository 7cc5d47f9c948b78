"""`make bench` measures the cost of reading through multiclouddb, compared with hand-written code."""

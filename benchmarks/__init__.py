"""`make bench`: the cost of reading through multiclouddb compared with hand-written code."""

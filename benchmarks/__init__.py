"""`make bench`: what reading through multiclouddb costs beside doing it by hand."""

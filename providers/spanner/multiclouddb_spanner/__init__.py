"""The multiclouddb provider for Cloud Spanner change streams."""

"""A scripted Cloud Spanner with change streams, for tests."""

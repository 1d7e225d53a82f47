"""Where training data comes from: sources of records, and what turns records into batches."""

"""The configuration: a frozen typed tree under verl's dotted names, and the one place that reads it from YAML and a command line."""

"""Tables through a model of a service: rows out, lines in, results back beside their rows."""

"""JSON: by JSON Schema or a given type, texts to columns, and columns to texts."""

"""What sources with a web server share: where they listen, and how posts are stored."""

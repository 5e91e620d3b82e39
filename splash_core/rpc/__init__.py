"""Wire codecs, channels and error mapping; the only code that sees protobuf."""

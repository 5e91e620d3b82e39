"""Gateway and router: OpenAI HTTP in, gRPC out."""

package engine

import "context"

// clientKey is the key of a client's name in a context.
type clientKey struct{}

// WithClient returns a context with the name of the client whose request is being answered.
func WithClient(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, clientKey{}, name)
}

// Client returns the name of [WithClient] or "".
func Client(ctx context.Context) string {
	name, _ := ctx.Value(clientKey{}).(string)
	return name
}

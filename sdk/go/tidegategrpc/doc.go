// Package tidegategrpc protects gRPC services from overload, with interceptors for both sides and nothing to set.
//
// The server's interceptors learn how many calls the process can serve and how many calls may be in flight to what
// stands behind the handlers. They refuse what would wait too long and tell every client, in the metadata of its
// answers, which share of its calls to send. The client's interceptors obey: what a server has no room for fails
// beside its caller, in less than a microsecond, and never reaches it.
//
//	server := grpc.NewServer(
//		grpc.UnaryInterceptor(tidegategrpc.UnaryServerInterceptor()),
//		grpc.StreamInterceptor(tidegategrpc.StreamServerInterceptor()),
//	)
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithUnaryInterceptor(tidegategrpc.UnaryClientInterceptor()),
//		grpc.WithStreamInterceptor(tidegategrpc.StreamClientInterceptor()),
//	)
//
// Either side is of use alone: a client without the interceptors gets standard refusals, and one with them sends
// freely to a server without. They speak the same metadata as Tidegate's layers for tonic and axum.
//
// A refused call fails with RESOURCE_EXHAUSTED, and [Shed] tells it from other errors. Its handler never ran: it is
// safe to send again.
package tidegategrpc

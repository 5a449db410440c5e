package tidegategrpc

import (
	"time"

	"tidegate.invalid/sdk/go/internal/credits"
)

// Frozen returns a server of one core and one place in line whose line moves only when move is called.
func Frozen(options ...ServerOption) (server *Server, move func()) {
	small := func(s *Server) { s.config = credits.Config{Cores: 1, Waiting: 1} }
	server = NewServer(append(options, small)...)
	server.gate.look = looker{onLook: func(time.Duration) {}}
	return server, func() { server.gate.onLook(0) }
}

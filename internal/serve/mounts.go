package serve

// mountAPIs mounts the APIs and the page.
func (s *Server) mountAPIs() {}

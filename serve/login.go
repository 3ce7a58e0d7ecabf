package serve

import (
	_ "embed"
	"html/template"
	"net/http"
	"strings"

	"github.com/gomflux/gomflux/serve/engine"
)

//go:embed login.html
var loginText string

var loginPage = template.Must(template.New("login").Parse(loginText))

// showLogin writes the page that asks for a token.
func (s *Server) showLogin(w http.ResponseWriter, r *http.Request) {
	if len(s.Tokens) == 0 {
		http.Redirect(w, r, "/", http.StatusSeeOther)
		return
	}
	s.writeLogin(w, r, http.StatusOK, "")
}

func (s *Server) writeLogin(w http.ResponseWriter, r *http.Request, status int, problem string) {
	nonce := engine.NewID()
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; img-src data:; style-src 'nonce-"+nonce+
		"'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		loginPage.Execute(w, map[string]string{"Nonce": nonce, "Problem": problem})
	}
}

// login exchanges a token for a cookie.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	if err := r.ParseForm(); err != nil {
		s.refuse(w, r, http.StatusBadRequest, "expected a form with a token")
		return
	}
	name, ok := s.nameOf(r.PostForm.Get("token"))
	if !ok {
		s.slowDown(r)
		s.writeLogin(w, r, http.StatusUnauthorized, "The token is wrong.")
		return
	}
	http.SetCookie(w, s.newCookie(name, s.encrypted()))
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// logout ends the session, and removes its cookie.
func (s *Server) logout(w http.ResponseWriter, r *http.Request) {
	if ended, ok := s.sessionOf(r); ok {
		if err := s.revoked.add(ended); err != nil {
			s.Log.Warn("a session that has ended comes back when the server is started again", "error", err.Error())
		}
	}
	gone := s.newCookie("", s.encrypted())
	gone.Value, gone.MaxAge = "", -1
	http.SetCookie(w, gone)
	w.Header().Set("Clear-Site-Data", `"storage"`) // what the page keeps in the browser
	http.Redirect(w, r, "/login", http.StatusSeeOther)
}

// encrypted reports whether clients reach the server with HTTPS.
func (s *Server) encrypted() bool { return s.TLS != nil || strings.HasPrefix(s.BaseURL, "https:") }

// Package page serves the page for browsers. Its files are embedded, need no build step, and
// request nothing from other hosts.
package page

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"mime"
	"net/http"
	"path"
	"time"
)

//go:embed assets
var assets embed.FS

// policy allows files of this server alone, and images that the page makes itself.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; " +
	"form-action 'none'; base-uri 'none'; frame-ancestors 'none'"

// Handler returns the handler of / and of the files below /page/. Other paths are not found.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/{$}", file("index.html"))
	entries, err := assets.ReadDir("assets")
	if err != nil {
		panic(err) // they are embedded
	}
	for _, e := range entries {
		mux.Handle("/page/"+e.Name(), file(e.Name()))
	}
	return mux
}

// file serves an embedded file.
func file(name string) http.Handler {
	text, err := assets.ReadFile("assets/" + name)
	if err != nil {
		panic(err)
	}
	hash := sha256.Sum256(text)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "expected GET or HEAD", http.StatusMethodNotAllowed)
			return
		}
		h := w.Header()
		h.Set("Content-Type", contentType(name))
		h.Set("Content-Security-Policy", policy)
		h.Set("Cache-Control", "no-cache") // asks each time, and is answered by the hash
		h.Set("ETag", `"`+hex.EncodeToString(hash[:16])+`"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	})
}

// contentType does not depend on the tables of the machine.
func contentType(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.TypeByExtension(path.Ext(name))
}

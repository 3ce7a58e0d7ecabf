package hubtest

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A request is a request to the hub, split into its parts.
type request struct {
	repo string
	what string // revision, tree or resolve; cache of a resolved file
	rev  string
	path string
}

// parse splits a URL. Only revisions are escaped as a whole: refs%2Fpr%2F1.
func parse(escaped string) (q request) {
	q.what = "resolve"
	for prefix, what := range map[string]string{"/api/models/": "revision", "/api/resolve-cache/models/": "cache"} {
		if rest, ok := strings.CutPrefix(escaped, prefix); ok {
			q.what, escaped = what, "/"+rest
		}
	}
	parts := append(strings.Split(escaped, "/")[1:], "", "", "", "")
	for i := range parts {
		parts[i], _ = url.PathUnescape(parts[i])
	}
	q.repo, parts = parts[0]+"/"+parts[1], parts[2:]
	if q.what != "cache" {
		q.what, parts = cmp.Or(parts[0], q.what), parts[1:]
	}
	q.rev, q.path = parts[0], strings.TrimRight(strings.Join(parts[1:], "/"), "/")
	if q.what == "revision" {
		q.rev = cmp.Or(q.rev, "main") // without a revision it is the default branch
	}
	return q
}

func (h *Hub) serveHub(w http.ResponseWriter, r *http.Request) {
	h.Set(func() {}) // what has been set before is seen from here on
	w.Header().Set("RateLimit", `"api";r=499;t=123`)
	w.Header().Set("RateLimit-Policy", `"fixed window";"api";q=500;w=300`)
	q := parse(strings.TrimPrefix(r.URL.EscapedPath(), h.Prefix))
	account, known := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case strings.HasPrefix(account, "unknown"):
		refuse(w, http.StatusUnauthorized, "", "Invalid credentials in Authorization header")
	case slices.Contains(h.Former, q.repo): // the query is kept
		w.Header().Set("Location", strings.Replace(r.URL.RequestURI(), q.repo, h.Repo, 1))
		w.WriteHeader(http.StatusTemporaryRedirect)
	case (q.repo != h.Repo || h.Private && account != h.Token) && known:
		refuse(w, http.StatusNotFound, "RepoNotFound", "Repository not found")
	case q.repo != h.Repo || h.Private && account != h.Token:
		refuse(w, http.StatusUnauthorized, "RepoNotFound", "Invalid username or password.")
	case h.Disabled:
		refuse(w, http.StatusForbidden, "", "Access to this resource is disabled.")
	case (q.what == "revision" || q.what == "tree") && h.faulty("hub", "api", w, r):
	case !h.known(q.rev):
		refuse(w, http.StatusNotFound, "RevisionNotFound", "Invalid rev id: "+q.rev)
	case q.what == "revision":
		answer(w, map[string]any{"id": h.Repo, "sha": h.Commit(), "gated": h.gate(), "private": h.Private,
			"cardData": map[string]any{"license": "mit"}, "siblings": h.siblings(r.URL.Query().Has("blobs"))})
	case q.what == "tree":
		h.serveTree(w, r, q)
	default:
		h.serveFile(w, r, q)
	}
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	json.NewEncoder(w).Encode(value)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.Header().Set("X-Error-Message", message)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]string{"error": message})
}

func (h *Hub) gate() any {
	if h.Token != "" {
		return "auto"
	}
	return false
}

func (h *Hub) known(revision string) bool {
	return len(revision) >= 7 && strings.HasPrefix(h.Commit(), revision) || slices.Contains(h.Revisions, revision)
}

// serveFile answers with a file, or with a redirect to its contents.
func (h *Hub) serveFile(w http.ResponseWriter, r *http.Request, q request) {
	w.Header().Set("X-Repo-Commit", h.Commit())
	data, ok := h.Files[q.path]
	switch account := r.Header.Get("Authorization"); {
	case !ok:
		refuse(w, http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	case h.Token != "" && account == "":
		refuse(w, http.StatusUnauthorized, "GatedRepo", "Access to model "+h.Repo+" is restricted. "+
			"You must have access to it and be authenticated to access it. Please log in.")
		return
	case h.Token != "" && account != "Bearer "+h.Token:
		refuse(w, http.StatusForbidden, "GatedRepo", cmp.Or(h.Refusal, "Access to model "+h.Repo+" is restricted "+
			"and you are not in the authorized list. Visit "+h.URL+"/"+h.Repo+" to ask for access."))
		return
	case q.what == "cache":
		h.serve(w, r, q.path)
		return
	case h.faulty("hub", q.path, w, r):
		return
	}
	w.Header().Set("Etag", `"`+h.hashes[q.path]+`"`)
	if !LFS(q.path) {
		w.Header().Set("Location", h.Prefix+"/api/resolve-cache/models/"+h.Repo+"/"+h.Commit()+"/"+escape(q.path)+"?etag="+
			url.QueryEscape(w.Header().Get("Etag")))
		w.WriteHeader(http.StatusTemporaryRedirect)
		return
	}
	w.Header().Set("X-Linked-Etag", `"`+h.hashes[q.path]+`"`)
	w.Header().Set("X-Linked-Size", strconv.Itoa(len(data)))
	if h.Xet {
		w.Header().Set("X-Xet-Hash", h.hashes[q.path])
		w.Header().Set("Link", fmt.Sprintf(`<%s/api/models/%s/xet-read-token/%s>; rel="xet-auth"`, h.URL, h.Repo, h.Commit()))
	}
	var link int
	h.Set(func() { link, h.links = len(h.links), append(h.links, 0) })
	w.Header().Set("Location", fmt.Sprintf("%s/%s?Signature=secret-%d&Key-Pair-Id=K", h.store, escape(q.path), link))
	w.WriteHeader(http.StatusFound)
}

func escape(path string) string { return (&url.URL{Path: path}).EscapedPath() }

func (h *Hub) serveStore(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimPrefix(r.URL.Path, "/")
	link, err := strconv.Atoi(strings.TrimPrefix(r.URL.Query().Get("Signature"), "secret-"))
	h.Set(func() {
		if a := r.Header.Get("Authorization"); a != "" {
			h.leaked = append(h.leaked, a)
		}
		if err == nil && link < len(h.links) {
			h.links[link]++
			if h.Uses == 0 || h.links[link] <= h.Uses {
				return
			}
		}
		err = http.ErrAbortHandler
	})
	switch {
	case h.faulty("store", path, w, r):
	case err != nil:
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		w.Write([]byte(`<?xml version="1.0"?><Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>`))
	default:
		h.serve(counter{w, h}, r, path)
	}
}

// faulty counts a request and calls Fault.
func (h *Hub) faulty(host, path string, w http.ResponseWriter, r *http.Request) bool {
	h.mu.Lock()
	n := h.asked[host+" "+path]
	h.asked[host+" "+path]++
	fault := h.Fault
	h.mu.Unlock()
	return fault != nil && fault(host, path, n, w, r)
}

// A counter counts the bytes sent.
type counter struct {
	http.ResponseWriter
	hub *Hub
}

func (c counter) Write(b []byte) (int, error) {
	n, err := c.ResponseWriter.Write(b)
	c.hub.Set(func() { c.hub.sent += int64(n) })
	return n, err
}

// serve serves a file without faults. Text is compressed for who accepts that.
func (h *Hub) serve(w http.ResponseWriter, r *http.Request, name string) {
	w.Header().Set("Etag", `"`+h.hashes[name]+`"`)
	w.Header().Set("Content-Type", "application/octet-stream")
	text := slices.Contains([]string{".json", ".md", ".txt"}, path.Ext(name))
	if text && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && r.Method == http.MethodGet {
		w.Header().Set("Etag", `W/"`+h.hashes[name]+`"`)
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		z.Write(h.Files[name])
		z.Close()
		return
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(h.Files[name]))
}

func (h *Hub) siblings(blobs bool) (list []map[string]any) {
	for _, name := range slices.Sorted(maps.Keys(h.Files)) {
		entry := map[string]any{"rfilename": name}
		if blobs {
			entry["size"], entry["blobId"] = len(h.Files[name]), h.blob(name)
			if LFS(name) {
				entry["lfs"] = map[string]any{"sha256": h.hashes[name], "size": len(h.Files[name]), "pointerSize": 134}
			}
		}
		list = append(list, entry)
	}
	return list
}

// serveTree lists a folder, or with recursive=true what is in its folders too. A
// header leads to the next page.
func (h *Hub) serveTree(w http.ResponseWriter, r *http.Request, q request) {
	list := []map[string]any{}
	folders := map[string]bool{}
	recursive := strings.EqualFold(r.URL.Query().Get("recursive"), "true")
	for _, name := range slices.Sorted(maps.Keys(h.Files)) {
		rest, ok := strings.CutPrefix("/"+name, strings.TrimSuffix("/"+q.path, "/")+"/")
		if !ok {
			continue
		}
		for i := range rest {
			folder := strings.TrimPrefix(path.Join(q.path, rest[:i]), "/")
			if rest[i] == '/' && !folders[folder] && (recursive || !strings.Contains(rest[:i], "/")) {
				folders[folder] = true
				list = append(list, map[string]any{"type": "directory", "oid": Hash("", []byte(folder)), "size": 0, "path": folder})
			}
		}
		if strings.Contains(rest, "/") && !recursive {
			continue
		}
		entry := map[string]any{"type": "file", "path": name, "size": len(h.Files[name]), "oid": h.blob(name)}
		if LFS(name) {
			entry["lfs"] = map[string]any{"oid": h.hashes[name], "size": len(h.Files[name]), "pointerSize": 134}
			if h.Xet {
				entry["xetHash"] = h.hashes[name]
			}
		}
		list = append(list, entry)
	}
	begin, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	end := min(begin+cmp.Or(h.Page, 1000), len(list))
	if end < len(list) {
		next := *r.URL
		query := next.Query()
		query.Set("cursor", strconv.Itoa(end))
		next.RawQuery = query.Encode()
		w.Header().Set("Link", "<"+strings.TrimSuffix(h.URL, h.Prefix)+next.RequestURI()+`>; rel="next"`)
	}
	answer(w, list[begin:end])
}

// blob returns the hash of the git object. For a large file the real hub would
// return that of the LFS pointer, which no client uses.
func (h *Hub) blob(name string) string {
	if LFS(name) {
		return Hash("", []byte(h.hashes[name]))
	}
	return h.hashes[name]
}

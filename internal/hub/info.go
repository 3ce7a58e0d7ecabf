package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Info describes a repository at a revision, as the hub lists it.
type Info struct {
	Repo     string // owner/name, as requested
	Revision string // as requested: a branch, a tag or a commit
	Commit   string
	Gated    bool
	Licence  string // from the model card; "" if it has no licence
	Files    []File
}

// A File is a file of a repository at a commit.
type File struct {
	Path string // with slashes
	Size int64  // bytes
	// Hash is the file's name in the cache and verifies its contents. It is the
	// SHA-256 of files in large file storage, and the hash of the git object of
	// all others (SHA-1 of a header with the size, and the contents).
	Hash string
	LFS  bool // in large file storage
}

var (
	commitName = regexp.MustCompile(`^[0-9a-f]{40}$`)
	sha1Hex    = commitName
	sha256Hex  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	revision   = regexp.MustCompile(`^[A-Za-z0-9_][\w.+/-]*$`)
)

// IsRevision reports whether name is valid for a branch, a tag or a commit, and
// for a file in the cache's folder refs.
func IsRevision(name string) bool {
	return revision.MatchString(name) && fs.ValidPath(name) && !strings.HasSuffix(name, ".tmp")
}

// A sibling is a file in the hub's answer.
type sibling struct {
	Name   string `json:"rfilename"`
	Size   *int64 `json:"size"`
	BlobID string `json:"blobId"`
	LFS    *struct {
		SHA256 string `json:"sha256"`
		Size   *int64 `json:"size"`
	} `json:"lfs"`
}

// parseInfo reads the hub's answer to GET /api/models/REPO/revision/REVISION
// with blobs=true. It rejects file names that lead out of the snapshot's folder, and
// leaves out those that cannot be shown.
func parseInfo(data []byte) (*Info, error) {
	var answer struct {
		SHA      string          `json:"sha"`
		Gated    json.RawMessage `json:"gated"` // false, "auto" or "manual"
		CardData json.RawMessage `json:"cardData"`
		Siblings []sibling       `json:"siblings"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("the hub's answer is not the expected JSON: %w", err)
	}
	if !commitName.MatchString(answer.SHA) {
		return nil, fmt.Errorf("the hub's answer has the commit %.80q, expected 40 hexadecimal digits", answer.SHA)
	}
	info := &Info{
		Commit: answer.SHA,
		Gated:  len(answer.Gated) > 0 && string(answer.Gated) != "false" && string(answer.Gated) != "null",
	}
	var card struct {
		Licence string `json:"license"`
		Name    string `json:"license_name"`
	}
	if json.Unmarshal(answer.CardData, &card) == nil { // some have a list of them
		info.Licence = licenceOf(card.Licence, card.Name)
	}
	var total int64
	seen := map[string]bool{}
	for _, s := range answer.Siblings {
		if strings.ContainsFunc(s.Name, unprintable) {
			continue // such as an emoji of several characters; no file of a model has such a name
		}
		f, err := s.file()
		if err != nil {
			return nil, err
		}
		if seen[s.Name] {
			return nil, fmt.Errorf("the hub lists the file %q twice", s.Name)
		}
		seen[s.Name] = true
		if f.Size > math.MaxInt64-total {
			return nil, fmt.Errorf("the hub lists %s with a size of %d bytes", s.Name, f.Size)
		}
		total += f.Size
		info.Files = append(info.Files, f)
	}
	return info, nil
}

// file validates a file of the hub's answer.
func (s sibling) file() (File, error) {
	if err := checkPath(s.Name); err != nil {
		return File{}, err
	}
	f := File{Path: s.Name, Hash: s.BlobID}
	size := s.Size
	valid := sha1Hex
	if s.LFS != nil {
		f.LFS, f.Hash, valid = true, s.LFS.SHA256, sha256Hex
		if s.LFS.Size != nil {
			size = s.LFS.Size
		}
	}
	switch {
	case size == nil || f.Hash == "":
		return File{}, fmt.Errorf("the hub lists %s without size or hash, so the file could not be verified", s.Name)
	case !valid.MatchString(f.Hash):
		return File{}, fmt.Errorf("the hub lists %s with the invalid hash %.80q", s.Name, f.Hash)
	case *size < 0:
		return File{}, fmt.Errorf("the hub lists %s with a size of %d bytes", s.Name, *size)
	}
	f.Size = *size
	return f, nil
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// checkPath rejects file names that lead out of the snapshot or contain control
// characters.
func checkPath(name string) error {
	if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, '\\') || strings.ContainsFunc(name, unprintable) {
		return fmt.Errorf("the hub lists a file with the unsafe name %.200q", name)
	}
	return nil
}

// licenceOf returns the licence's identifier or, if that is "other", its name.
func licenceOf(id, name string) string {
	if id == "other" && name != "" {
		return name
	}
	return id
}

// CardLicence returns the licence in the YAML block at the top of a model card
// (README.md), or "".
func CardLicence(card []byte) string {
	text, ok := strings.CutPrefix(strings.ReplaceAll(string(card), "\r\n", "\n"), "---\n")
	if !ok {
		return ""
	}
	head, _, ok := strings.Cut(text, "\n---")
	if !ok {
		return ""
	}
	values := map[string]string{}
	for line := range strings.Lines(head) {
		key, value, _ := strings.Cut(line, ":")
		value, _, _ = strings.Cut(value, " #")
		values[key] = strings.Trim(strings.TrimSpace(value), `"'`)
	}
	return licenceOf(values["license"], values["license_name"])
}

// components returns the folders of the components of a model_index.json that have a class. In the index of a
// modular pipeline the class may be in a spec, which names another folder, or one of another repository: that is
// not among the repository's files.
func components(index []byte) (names []string, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(index, &members); err != nil {
		return nil, fmt.Errorf("model_index.json: %w", err)
	}
	for name, raw := range members {
		var member []json.RawMessage
		if strings.HasPrefix(name, "_") || json.Unmarshal(raw, &member) != nil || len(member) != 2 && len(member) != 3 {
			continue
		}
		var class *string
		if json.Unmarshal(member[1], &class) != nil || class == nil && len(member) == 2 {
			continue
		}
		var spec struct {
			Subfolder string `json:"subfolder"`
		}
		if len(member) == 3 && json.Unmarshal(member[2], &spec) != nil {
			continue
		}
		for _, folder := range []string{name, spec.Subfolder} {
			if folder == "" || slices.Contains(names, folder) {
				continue
			}
			if strings.Contains(folder, "/") || checkPath(folder) != nil {
				return nil, fmt.Errorf("model_index.json: %q is not a valid name of a component", folder)
			}
			names = append(names, folder)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("model_index.json: no components")
	}
	return names, nil
}

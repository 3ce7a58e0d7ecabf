package hub

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"regexp"
	"strings"
	"unicode"
)

// An Info is what a hub tells of a repository at a revision.
type Info struct {
	Repo     string // owner/name, as it was asked for
	Revision string // as it was asked for: a branch, a tag or a commit
	Commit   string
	Gated    bool
	Licence  string // by the model card; "" where that does not tell
	Files    []File
}

// A File is one of a repository's, at a commit.
type File struct {
	Path string // with slashes
	Size int64
	// Hash names the file in the cache, and is what its bytes are checked by:
	// the SHA-256 of a file in large file storage, the hash of the git object of
	// any other one (SHA-1 over a header with the size, and the bytes).
	Hash string
	LFS  bool
}

var (
	commitName = regexp.MustCompile(`^[0-9a-f]{40}$`)
	sha1Hex    = commitName
	sha256Hex  = regexp.MustCompile(`^[0-9a-f]{64}$`)
	revision   = regexp.MustCompile(`^[A-Za-z0-9_][\w.+/-]*$`)
)

// IsRevision says whether a name can be one of a branch, a tag or a commit, and
// of a file below the cache's folder refs.
func IsRevision(name string) bool {
	return revision.MatchString(name) && fs.ValidPath(name) && !strings.HasSuffix(name, ".tmp")
}

// parseInfo reads the hub's answer to GET /api/models/REPO/revision/REVISION
// with blobs=true. Nothing of it can lead out of the folder it is stored in.
func parseInfo(data []byte) (*Info, error) {
	var answer struct {
		SHA      string          `json:"sha"`
		Gated    json.RawMessage `json:"gated"` // false, "auto" or "manual"
		CardData json.RawMessage `json:"cardData"`
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   *int64 `json:"size"`
			BlobID string `json:"blobId"`
			LFS    *struct {
				SHA256 string `json:"sha256"`
				Size   *int64 `json:"size"`
			} `json:"lfs"`
		} `json:"siblings"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		return nil, fmt.Errorf("the hub's answer is not the JSON that was expected: %w", err)
	}
	if !commitName.MatchString(answer.SHA) {
		return nil, fmt.Errorf("the hub's answer has the commit %.80q, expected 40 hexadecimal digits", answer.SHA)
	}
	info := &Info{Commit: answer.SHA, Gated: len(answer.Gated) > 0 && string(answer.Gated) != "false" && string(answer.Gated) != "null"}
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
		if err := checkPath(s.Name); err != nil {
			return nil, err
		}
		if seen[s.Name] {
			return nil, fmt.Errorf("the hub lists the file %q twice", s.Name)
		}
		seen[s.Name] = true
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
			return nil, fmt.Errorf("the hub does not tell size and hash of %s, without which no file can be checked", s.Name)
		case !valid.MatchString(f.Hash):
			return nil, fmt.Errorf("the hub gives %s the hash %.80q, which is none", s.Name, f.Hash)
		case *size < 0 || *size > math.MaxInt64-total:
			return nil, fmt.Errorf("the hub gives %s a size of %d bytes", s.Name, *size)
		}
		f.Size = *size
		total += f.Size
		info.Files = append(info.Files, f)
	}
	return info, nil
}

// checkPath refuses names of files that would be written elsewhere than below
// the snapshot, or that a terminal would act on.
func checkPath(name string) error {
	if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, '\\') || strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return fmt.Errorf("the hub lists a file named %.200q, which is refused", name)
	}
	return nil
}

// licenceOf is the licence's identifier, or its own name where that is other.
func licenceOf(id, name string) string {
	if id == "other" && name != "" {
		return name
	}
	return id
}

// CardLicence returns the licence that a model card, README.md, has in the YAML
// block that it begins with; "" where there is none.
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

// components returns the folders that a model_index.json names, those with a
// class.
func components(index []byte) (names []string, err error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(index, &members); err != nil {
		return nil, fmt.Errorf("model_index.json: %w", err)
	}
	for name, raw := range members {
		var pair []*string
		if strings.HasPrefix(name, "_") || json.Unmarshal(raw, &pair) != nil || len(pair) != 2 || pair[0] == nil || pair[1] == nil {
			continue
		}
		if strings.Contains(name, "/") || checkPath(name) != nil {
			return nil, fmt.Errorf("model_index.json: %q is not the name of a component", name)
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, errors.New("model_index.json: names no component")
	}
	return names, nil
}

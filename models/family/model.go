package family

import (
	"strings"

	"github.com/gomflux/gomflux/internal/hub"
)

// URL is the model's page.
func (m *Model) URL() string { return hub.DefaultEndpoint + "/" + m.Repo }

// Access is what there is to do before a gated model can be fetched.
func (m *Model) Access() string {
	return "accept its conditions at " + m.URL() + ", and set HF_TOKEN to a token of yours (from " + hub.DefaultEndpoint + "/settings/tokens) or log in (hf auth login)"
}

// RepoName is the name of the model's repository without its owner's.
func (m *Model) RepoName() string {
	_, name, _ := strings.Cut(m.Repo, "/")
	return name
}

package family

import (
	"strings"

	"github.com/gomflux/gomflux/internal/hub"
)

// URL returns the address of the model's page.
func (m *Model) URL() string { return hub.DefaultEndpoint + "/" + m.Repo }

// Access describes how to get access to a gated model.
func (m *Model) Access() string {
	return "accept its conditions at " + m.URL() +
		", and set HF_TOKEN to a token of yours (from " + hub.DefaultEndpoint + "/settings/tokens) or log in (hf auth login)"
}

// RepoName returns the name of the model's repository without the owner.
func (m *Model) RepoName() string {
	_, name, _ := strings.Cut(m.Repo, "/")
	return name
}

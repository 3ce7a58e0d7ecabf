package family

import (
	"slices"
	"strings"
)

// CommercialUse is how far a licence allows commercial use.
type CommercialUse string

// The values of CommercialUse. It is "" for a licence that is not known.
const (
	CommercialAllowed     CommercialUse = "allowed"
	CommercialConditional CommercialUse = "conditional"
	CommercialForbidden   CommercialUse = "forbidden"
)

// A Licence is the licence of published models. Its JSON fields are those of the command and of the
// server.
type Licence struct {
	Name string `json:"licence,omitempty"` // an SPDX identifier, or the licence's own name
	URL  string `json:"licence_url,omitempty"`
	// ID is its name in model cards on the Hugging Face hub, if that is not Name in another case.
	ID         string        `json:"-"`
	Commercial CommercialUse `json:"commercial_use,omitempty"`
	// Terms describe what it allows of commercial use, as part of a sentence; "" if it allows all,
	// or is not known.
	Terms string `json:"licence_terms,omitempty"`
}

const noCommercialUse = "no commercial use"

var apache2 = Licence{
	Name: "Apache-2.0", URL: "https://www.apache.org/licenses/LICENSE-2.0", Commercial: CommercialAllowed,
}

// permissive are names of other licences on the hub that allow commercial use.
var permissive = []string{"mit", "bsd-2-clause", "bsd-3-clause", "cc0-1.0", "cc-by-4.0", "unlicense"}

// LicenceNamed returns the licence with a name on the hub, or with the own name of a published
// model's licence. Of others it has the terms only if they follow from the name.
func LicenceNamed(name string) Licence {
	for _, f := range All {
		for _, m := range f.Models {
			if strings.EqualFold(name, m.Licence.Name) || m.Licence.ID != "" && strings.EqualFold(name, m.Licence.ID) {
				return m.Licence
			}
		}
	}
	lower := strings.ToLower(name)
	switch {
	case slices.Contains(permissive, lower):
		return Licence{Name: name, Commercial: CommercialAllowed}
	case strings.Contains(strings.ReplaceAll(lower, "-", ""), "noncommercial"), strings.HasPrefix(lower, "cc-by-nc"):
		return Licence{Name: name, Commercial: CommercialForbidden, Terms: noCommercialUse}
	}
	return Licence{Name: name}
}

// Summary returns "licence", the name and the terms; "" for a licence without a name.
func (l *Licence) Summary() string {
	switch {
	case l.Name == "":
		return ""
	case l.Terms == "":
		return "licence " + l.Name
	}
	return "licence " + l.Name + ": " + l.Terms
}

// Notice returns what a user should read before a download: Summary with the licence's address if
// it restricts commercial use, otherwise "".
func (l *Licence) Notice() string {
	switch {
	case l.Terms == "":
		return ""
	case l.URL == "":
		return l.Summary()
	}
	return l.Summary() + " (" + l.URL + ")"
}

package family_test

import (
	"strings"
	"testing"

	"github.com/gomflux/gomflux/models/family"
)

// TestLicences checks that the licence of every model is complete, and is found by its names.
func TestLicences(t *testing.T) {
	published(t, func(t *testing.T, m family.Model) {
		l := m.Licence
		if l.Name == "" || !strings.HasPrefix(l.URL, "https://") {
			t.Errorf("licence %q at %q", l.Name, l.URL)
		}
		switch l.Commercial {
		case family.CommercialAllowed:
			if l.Terms != "" || l.Notice() != "" {
				t.Errorf("%s allows commercial use, with the terms %q", l.Name, l.Terms)
			}
		case family.CommercialConditional, family.CommercialForbidden:
			if l.Terms == "" || l.Notice() != "licence "+l.Name+": "+l.Terms+" ("+l.URL+")" {
				t.Errorf("%s: terms %q, notice %q", l.Name, l.Terms, l.Notice())
			}
		default:
			t.Errorf("%s: commercial use %q", l.Name, l.Commercial)
		}
		if named := family.LicenceNamed(strings.ToUpper(l.Name)); named.Name != l.Name || named.Terms != l.Terms {
			t.Errorf("%s: by its name %+v", l.Name, named)
		}
		if named := family.LicenceNamed(l.ID); l.ID != "" && named.Name != l.Name {
			t.Errorf("%s: by its ID %+v", l.ID, named)
		}
	})
}

func TestLicenceNamed(t *testing.T) {
	const forbidden = ": no commercial use"
	for name, want := range map[string]string{
		"":                                  "",
		"apache-2.0":                        "licence Apache-2.0, allowed",
		"mit":                               "licence mit, allowed",
		"other":                             "licence other, ",
		"flux-1-dev-non-commercial-license": "licence FLUX.1 [dev] Non-Commercial License" + forbidden + ", forbidden",
		"krea-2-community-license": "licence Krea 2 Community License: " +
			"commercial use only below a yearly revenue of US$ 1 million, conditional",
		"qwen-research":               "licence Qwen Research License" + forbidden + ", forbidden",
		"flux-non-commercial-license": "licence FLUX Non-Commercial License" + forbidden + ", forbidden",
		"my-own-noncommercial":        "licence my-own-noncommercial" + forbidden + ", forbidden",
		"cc-by-nc-sa-4.0":             "licence cc-by-nc-sa-4.0" + forbidden + ", forbidden",
		"sync-by-ncsoft":              "licence sync-by-ncsoft, ",
	} {
		l := family.LicenceNamed(name)
		got := l.Summary()
		if got != "" {
			got += ", " + string(l.Commercial)
		}
		if got != want {
			t.Errorf("%s: %q, expected %q", name, got, want)
		}
		if (l.Notice() != "") != (l.Terms != "") || l.URL == "" && l.Terms != "" && l.Notice() != l.Summary() {
			t.Errorf("%s: notice %q", name, l.Notice())
		}
	}
}

package units

import "testing"

func TestFormats(t *testing.T) {
	for _, test := range []struct {
		n                                  int64
		bytes, megabytes, gigabytes, about string
	}{
		{0, "0 kB", "0.0 MB", "0.0 MB", "0 MB"},
		{999, "1 kB", "0.0 MB", "0.0 MB", "0 MB"},
		{999_999, "1000 kB", "1.0 MB", "1.0 MB", "1 MB"},
		{1_000_000, "1.0 MB", "1.0 MB", "1.0 MB", "1 MB"},
		{15_500_000, "15.5 MB", "15.5 MB", "15.5 MB", "16 MB"},
		{99_999_999, "100.0 MB", "100.0 MB", "100.0 MB", "100 MB"},
		{120_000_000, "120.0 MB", "120.0 MB", "0.12 GB", "120 MB"},
		{1_000_000_000, "1.00 GB", "1.00 GB", "1.00 GB", "1.0 GB"},
		{12_310_000_000, "12.31 GB", "12.31 GB", "12.31 GB", "12.3 GB"},
	} {
		for got, want := range map[[2]string]string{
			{"Bytes", Bytes(test.n)}: test.bytes, {"Megabytes", Megabytes(test.n)}: test.megabytes,
			{"Gigabytes", Gigabytes(test.n)}: test.gigabytes, {"About", About(test.n)}: test.about,
		} {
			if got[1] != want {
				t.Errorf("%s(%d) is %q, expected %q", got[0], test.n, got[1], want)
			}
		}
	}
}

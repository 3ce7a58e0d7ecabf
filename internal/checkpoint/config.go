package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"reflect"

	"github.com/gomflux/gomflux/internal/quote"
)

// maxConfig limits the size of a JSON config, in bytes.
const maxConfig = 16 << 20

// ReadJSON reads a config file into v. It is stricter than json.Unmarshal: it
// rejects duplicate keys, invalid UTF-8, null in place of the config, and files
// over 16 MB. Keys that v does not have are ignored. To detect missing keys, v
// can use pointers or preset values. Errors name the file, the line and, if
// known, the key.
func ReadJSON(fsys fs.FS, name string, v any) error {
	data, err := ReadText(fsys, name, maxConfig)
	if err != nil {
		return err
	}
	if err := ParseJSON(data, v); err != nil {
		return fmt.Errorf("%s: %w", FullName(fsys, name), err)
	}
	return nil
}

// ParseJSON is json.Unmarshal with the checks of [ReadJSON], except the size.
func ParseJSON(data []byte, v any) error {
	s, err := newScanner(data)
	if err != nil {
		return atLine(data, err)
	}
	if s.peek(); s.has("null") {
		return errors.New("expected an object, found null")
	}
	if err := s.skip(); err != nil {
		return atLine(data, err)
	}
	err = json.Unmarshal(data, v)
	var typeErr *json.UnmarshalTypeError
	if errors.As(err, &typeErr) {
		key := ""
		if typeErr.Field != "" {
			key = fmt.Sprintf("key %s: ", quote.Text(typeErr.Field))
		}
		expected := typeErr.Type.String()
		if typeErr.Type.Kind() == reflect.Struct {
			expected = "object"
		}
		return fmt.Errorf("line %d: %sexpected %s, found %s", lineOf(data, int(typeErr.Offset)), key, expected, typeErr.Value)
	}
	return err
}

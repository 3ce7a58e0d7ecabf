// Command latentrgb fits the linear projection of an autoencoder's latents to colours that
// --preview uses, to images of the kind that the model generates. The result belongs into the
// model's folder vae:
//
//	go run ./scripts/latentrgb --model FOLDER IMAGE... >latent_rgb_factors.json
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"image"
	"os"

	"github.com/gomflux/gomflux/mlx"
	"github.com/gomflux/gomflux/models"
	"github.com/gomflux/gomflux/models/catalog"
	_ "github.com/gomflux/gomflux/models/shapes"
	"github.com/gomflux/gomflux/picture"
)

func main() {
	model := flag.String("model", "shapes", "the model, by its name or folder")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := run(*model, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "latentrgb:", err)
		os.Exit(1)
	}
}

func run(model string, files []string) error {
	source, err := catalog.Find(model)
	if err != nil {
		return err
	}
	var images []*image.RGBA
	for _, file := range files {
		p, err := picture.ReadFile(file)
		if err != nil {
			return err
		}
		images = append(images, p.Image)
	}
	return mlx.Do(context.Background(), func() error {
		a, err := models.LoadAutoencoder(source.FS, models.LoadOptions{})
		if err != nil {
			return err
		}
		defer a.Close()
		p, err := a.FitProjection(images...)
		if err != nil {
			return err
		}
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", " ")
		return out.Encode(p)
	})
}

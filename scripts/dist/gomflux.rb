# The formula for Homebrew. The release sets version and sha256, those of the archive for macOS.
class Gomflux < Formula
  desc "Image generation with diffusion models on Apple's MLX"
  homepage "https://github.com/gomflux/gomflux"
  version "VERSION"
  url "https://github.com/gomflux/gomflux/releases/download/v#{version}/gomflux-v#{version}-darwin-arm64.tar.gz"
  sha256 "SHA256"
  license "MIT"

  depends_on arch: :arm64
  depends_on macos: :sequoia

  def install
    libexec.install "gomflux", "lib", "licences", "README.txt", "LICENSE"
    bin.install_symlink libexec/"gomflux"
    bash_completion.install "completions/gomflux"
    zsh_completion.install "completions/_gomflux"
    fish_completion.install "completions/gomflux.fish"
  end

  def caveats
    "A Mac with little memory: gomflux models --mac 8,16 lists what fits."
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/gomflux version")
    system bin/"gomflux", "generate", "--model", "shapes", "--prompt", "a red circle", "--seed", "7", "--output", "circle.png"
    assert_equal "\x89PNG".b, (testpath/"circle.png").binread(4)
  end
end

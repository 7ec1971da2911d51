# The formula for Homebrew on Linux. It builds from a clone of the repository, as there is no published archive:
#
#   brew tap-new --no-git local/bgd && cp packages/homebrew/bgd.rb "$(brew --repository local/bgd)/Formula/"
#   HOMEBREW_BGD_CLONE=$PWD brew install --HEAD local/bgd/bgd
class Bgd < Formula
  desc "Background jobs for your shell, your scripts and your agents"
  license "MIT"
  head "file://#{ENV.fetch("HOMEBREW_BGD_CLONE", Dir.pwd)}", using: :git

  depends_on "rust" => :build
  depends_on :linux

  def install
    %w[bgd bgctl].each { |program| system "cargo", "install", *std_cargo_args(path: program) }
    man1.install Dir["man/*.1"]
    man5.install Dir["man/*.5"]
    man7.install Dir["man/*.7"]
    bash_completion.install "packages/completions/bgctl.bash" => "bgctl"
    zsh_completion.install "packages/completions/_bgctl"
    fish_completion.install "packages/completions/bgctl.fish"
    (share/"nushell/vendor/autoload").install "packages/completions/bgctl.nu"
    doc.install "man/bgd-protocol.schema.json"
  end

  # Optional: the first bgctl starts the daemon, and `bgctl daemon install` writes units that listen on the socket.
  service do
    run opt_bin/"bgd"
  end

  test do
    ENV["XDG_RUNTIME_DIR"] = testpath.to_s
    id = shell_output("#{bin}/bgctl submit -- echo hello").strip
    system bin/"bgctl", "block", id
    assert_equal "hello\n", shell_output("#{bin}/bgctl output #{id}")
    system bin/"bgctl", "daemon", "stop"
  end
end

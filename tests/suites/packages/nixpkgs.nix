# What packages/nix/default.nix uses of nixpkgs. A build takes the programs in the folder `programs`, which are built
# already, in place of cargo's; then nix itself runs the install phase as nixpkgs' own phases would.
{ programs }:

{
  lib = {
    cleanSourceFilter = path: type: baseNameOf path != ".git";
    cleanSourceWith = { src, filter }: builtins.filterSource filter src;
    licenses.mit = "MIT";
    platforms.linux = [ "x86_64-linux" ];
  };

  rustPlatform.buildRustPackage = args:
    assert builtins.pathExists args.cargoLock.lockFile;
    assert args.meta.license == "MIT";
    derivation {
      name = "${args.pname}-${args.version}";
      system = builtins.currentSystem;
      inherit (args) src postInstall cargoBuildFlags;
      inherit programs;
      builder = "/bin/sh";
      args = [
        "-euc"
        ''
          PATH=/usr/bin:/bin
          cp -r "$src" source && chmod -R u+w source && cd source
          set -- $cargoBuildFlags
          mkdir -p "$out/bin"
          while [ $# -gt 0 ]; do
            [ "$1" = --package ] && [ -f "$2/Cargo.toml" ]
            install -m 755 "$programs/$2" "$out/bin"
            shift 2
          done
          eval "$postInstall"
        ''
      ];
    };
}

# Both programs with their manual pages, completions and systemd user units:
#
#   nix-build packages/nix
{ pkgs ? import <nixpkgs> { } }:

let
  manifest = builtins.fromTOML (builtins.readFile ../../Cargo.toml);
in
pkgs.rustPlatform.buildRustPackage {
  pname = "bgd";
  version = manifest.workspace.package.version;

  src = pkgs.lib.cleanSourceWith {
    src = ../..;
    filter = path: type: baseNameOf path != "target" && pkgs.lib.cleanSourceFilter path type;
  };
  cargoLock.lockFile = ../../Cargo.lock;
  cargoBuildFlags = [ "--package" "bgd" "--package" "bgctl" ];

  # The tests need agents, Slurm, systemd and root; tests/run installs their dependencies.
  doCheck = false;

  postInstall = ''
    sh packages/lay-out "$out" "$out/bin"
  '';

  meta = {
    description = manifest.workspace.package.description;
    license = pkgs.lib.licenses.mit;
    platforms = pkgs.lib.platforms.linux;
    mainProgram = "bgctl";
  };
}

# What packages/homebrew/bgd.rb uses of Homebrew, so that its steps run without it: FORMULA, PREFIX, PROGRAMS, TEST.
# `cargo install` is checked and takes the programs that are built already.
require "fileutils"
require "pathname"

FORMULA, PREFIX, PROGRAMS, TEST = ARGV

class Pathname
  def install(*sources)
    mkpath
    sources.flatten.each do |source|
      pairs = source.is_a?(Hash) ? source : { source => File.basename(source) }
      pairs.each do |from, name|
        raise "there is no #{from}" unless File.file?(from)
        FileUtils.install from, self/name, mode: 0644
      end
    end
  end
end

class Formula
  class << self
    attr_reader :said, :served, :tested

    %i[desc homepage license head depends_on].each do |word|
      define_method(word) { |*arguments, **options| (@said ||= []) << [word, arguments, options] }
    end

    def service(&block) = @served = block
    def test(&block) = @tested = block
  end

  { man1: "share/man/man1", man5: "share/man/man5", man7: "share/man/man7", doc: "share/doc/bgd", bin: "bin",
    bash_completion: "etc/bash_completion.d", zsh_completion: "share/zsh/site-functions",
    fish_completion: "share/fish/vendor_completions.d", share: "share" }.each do |word, folder|
    define_method(word) { Pathname(PREFIX)/folder }
  end
  alias opt_bin bin

  def testpath = Pathname(TEST)
  def run(program) = @runs = program
  def std_cargo_args(path:) = ["--locked", "--root=#{PREFIX}", "--path=#{path}"]

  def system(*words)
    words = words.map(&:to_s)
    return Kernel.system(*words, exception: true) unless words.first == "cargo"
    program = words.last.delete_prefix("--path=")
    raise "not cargo's: #{words}" unless words[1] == "install" && File.file?("#{program}/Cargo.toml")
    bin.mkpath
    FileUtils.install "#{PROGRAMS}/#{program}", bin/program, mode: 0755
  end

  def shell_output(line)
    output = `#{line}`
    raise "#{line}: #{$?}" unless $?.success?
    output
  end

  def assert_equal(wanted, found)
    raise "#{found.inspect} is not #{wanted.inspect}" unless wanted == found
  end
end

load FORMULA
said = Bgd.said.map(&:first)
raise "the formula lacks something: #{said}" unless %i[desc license head].all? { |word| said.include?(word) }
formula = Bgd.new
formula.install
service = formula.instance_eval(&Bgd.served)
raise "#{service} is no program" unless service.executable?
formula.instance_eval(&Bgd.tested)
puts "used"

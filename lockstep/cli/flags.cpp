#include "lockstep/cli/flags.h"

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>
#include <string_view>

namespace lockstep::cli {
namespace {

// CLI11's messages may have several lines.
std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  while (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

}  // namespace

Check one_of(std::vector<std::string> words) {
  return [words = std::move(words)](std::string& text) -> std::string {
    if (std::ranges::count(words, text) > 0) return "";
    return fmt::format("{} is none of {}", text.empty() ? "''" : text,
                       CLI::detail::join(words, ", "));
  };
}

Flag& Flag::check(const Check& check) {
  option_->check(CLI::Validator(check, ""));
  return *this;
}

Flag& Flag::capture_default_str() {
  option_->capture_default_str();
  return *this;
}

Flag& Flag::delimiter(char between) {
  option_->delimiter(between);
  return *this;
}

Flag& Flag::required() {
  option_->required();
  return *this;
}

Flag Command::add_option(const std::string& name, std::string& target, const std::string& help) {
  return Flag(app_->add_option(name, target, help));
}
Flag Command::add_option(const std::string& name, int& target, const std::string& help) {
  return Flag(app_->add_option(name, target, help));
}
Flag Command::add_option(const std::string& name, std::int64_t& target, const std::string& help) {
  return Flag(app_->add_option(name, target, help));
}
Flag Command::add_option(const std::string& name, std::uint64_t& target, const std::string& help) {
  return Flag(app_->add_option(name, target, help));
}
Flag Command::add_option(const std::string& name, double& target, const std::string& help) {
  return Flag(app_->add_option(name, target, help));
}
Flag Command::add_option(const std::string& name, std::optional<double>& target,
                         const std::string& help) {
  return Flag(app_->add_option(name, target, help));
}
Flag Command::add_option(const std::string& name, std::vector<int>& target,
                         const std::string& help) {
  return Flag(app_->add_option(name, target, help));
}
Flag Command::add_option(const std::string& name, std::vector<std::string>& target,
                         const std::string& help) {
  return Flag(app_->add_option(name, target, help));
}
Flag Command::add_flag(const std::string& name, bool& target, const std::string& help) {
  return Flag(app_->add_flag(name, target, help));
}

void Command::footer(const std::string& text) {
  app_->footer(text);
}

void Command::callback(std::function<void()> run) {
  app_->callback(std::move(run));
}

GivenFlags Command::given() const {
  GivenFlags given;
  for (const CLI::Option* option : app_->get_options()) {
    const std::vector<std::string>& names = option->get_lnames();  // none: a positional argument
    if (option->count() > 0 && !names.empty()) given.insert("--" + names.front());
  }
  return given;
}

Program::Program(const std::string& help, const std::string& name, const std::string& version)
    : app_(std::make_unique<CLI::App>(help, name)) {
  app_->require_subcommand(1);
  app_->set_version_flag("--version", version);
}

Program::~Program() = default;

Command Program::add_command(const std::string& name, const std::string& help) {
  return Command(app_->add_subcommand(name, help));
}

std::vector<std::string> Program::commands() const {
  const std::vector<CLI::App*> all = app_->get_subcommands([](CLI::App*) { return true; });
  std::vector<std::string> names;
  std::ranges::transform(all, std::back_inserter(names),
                         [](CLI::App* each) { return each->get_name(); });
  return names;
}

void Program::take_rest(const std::string& command, std::vector<std::string>& target) {
  rests_[command] = &target;
}

void Program::parse(int argc, char** argv) {
  const auto rest = rests_.find(argc > 1 ? argv[1] : "");
  if (rest != rests_.end()) {
    char** const end = argv + argc;
    char** const dashes =
        std::find_if(argv, end, [](const char* word) { return std::string_view(word) == "--"; });
    if (dashes != end) rest->second->assign(dashes + 1, end);
    argc = static_cast<int>(dashes - argv);
  }
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    app_->exit(done);
  } catch (const CLI::ParseError& error) {
    throw WrongFlags(one_line(error.what()));
  }
}

const char* cli11_version() {
  return CLI11_VERSION;
}

}  // namespace lockstep::cli

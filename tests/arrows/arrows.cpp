#include "arrows/arrows.h"

#include <array>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace lockstep::arrows {
namespace {

constexpr std::string_view kHeading = "| room | holds | may include";

std::string trim(const std::string& text) {
  const auto begin = text.find_first_not_of(" \t`");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t`\r") - begin + 1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(trim(part));
  return parts;
}

// Backends that the rooms of kBackendFree must not include.
const std::regex kBackendHeader(
    "(cuda|cudnn|cublas|nccl|dnnl|oneapi/|mkl|gloo/|mpi\\.h|grpc|nvml|nvtx)", std::regex::icase);
const std::set<std::string> kBackendFree = {"base",  "profile", "graph", "nn",        "autodiff",
                                            "optim", "passes",  "plan",  "distribute"};
// What carries bytes between workers; only comm knows of it.
const std::regex kWireHeader("^(gloo/|mpi\\.h)");
// Rooms that describe computation and must not know where it runs.
const std::set<std::string> kDeviceFree = {"nn", "autodiff", "optim", "passes", "distribute"};

// The one file outside cli that writes to the terminal: the progress that fit shows by default.
const std::string kWrites = "writes to the terminal";
const char* const kShowsProgress = "lockstep/train/verbose.cpp";
// The one file outside cli that reads the environment: what a launcher says about the job.
const std::string kReads = "reads the environment";
const char* const kReadsVariables = "lockstep/cluster/process_environment.cpp";
// Files that end a process: the child that they have forked.
const std::string kEnds = "ends the process";
const std::set<std::string> kFork = {"lockstep/cluster/launch/guard.cpp",
                                     "lockstep/cluster/launch/process.cpp"};
// What only cli may do: read the environment, write to the terminal, end the process.
struct Forbidden {
  std::regex pattern;
  const char* what;
};
const std::array<Forbidden, 5> kOnlyInCli = {{
    {std::regex("\\b(secure_)?getenv\\s*\\(|\\benviron\\b"), kReads.c_str()},
    {std::regex("\\bstd::(cout|cerr|clog|wcout|wcerr)\\b"), kWrites.c_str()},
    {std::regex("(^|[^\\w])(std::)?(printf|vprintf|puts|putchar|perror)\\s*\\("), kWrites.c_str()},
    {std::regex("\\bfmt::print\\s*\\(|\\bstdout\\b|\\bstderr\\b"), kWrites.c_str()},
    // Only calls: matches at the start of a statement or expression, not after a type or a class.
    {std::regex("(^|[;{}()?,&|=!]|[^:]:\\s|\\b(return|else|do)\\s)\\s*(::)?(std::)?"
                "(exit|_exit|_Exit|quick_exit|abort|terminate)\\s*\\("),
     kEnds.c_str()},
}};

std::string room_of(const std::string& path) {
  static const std::regex inside("^lockstep/([a-z_]+)/.*");
  std::smatch match;
  return std::regex_match(path, match, inside) ? match[1].str() : "";
}

}  // namespace

Table parse_table(const std::string& document) {
  std::istringstream lines(document);
  std::string line;
  while (std::getline(lines, line) && !line.starts_with(kHeading)) {
  }
  if (!lines) throw std::runtime_error("the document has no table of rooms");
  std::getline(lines, line);  // the rule below the heading

  Table table;
  std::set<std::string> above;
  while (std::getline(lines, line) && line.starts_with("|")) {
    const auto cells = split(line.substr(1), '|');
    if (cells.size() < 3) throw std::runtime_error("a row without three cells: " + line);
    const std::string& room = cells[0];
    std::set<std::string> allowed = {room};
    for (const char* open : {"base", "profile"}) {
      if (above.contains(open)) allowed.insert(open);
    }
    if (cells[2] == "everything above") {
      allowed.insert(above.begin(), above.end());
    } else if (cells[2] != "nothing") {
      for (const std::string& name : split(cells[2], ',')) {
        if (!above.contains(name)) {
          throw std::runtime_error(room + " may include " + name + ", which has no row above it");
        }
        allowed.insert(table[name].begin(), table[name].end());
      }
    }
    above.insert(room);
    table[room] = std::move(allowed);
  }
  if (table.empty()) throw std::runtime_error("the table of rooms has no rows");
  return table;
}

std::string code_of(const std::string& source) {
  std::string code;
  bool line_start = true;
  for (std::size_t i = 0; i < source.size();) {
    if (line_start && source[i] == '#') {  // directives hold paths, not literals
      while (i < source.size() && source[i] != '\n' && source.compare(i, 2, "//") != 0) {
        code += source[i++];
      }
      line_start = false;
    } else if (source.compare(i, 2, "//") == 0) {
      while (i < source.size() && source[i] != '\n') ++i;
    } else if (source.compare(i, 2, "/*") == 0) {
      const auto end = source.find("*/", i + 2);
      i = end == std::string::npos ? source.size() : end + 2;
    } else if (source.compare(i, 2, "R\"") == 0) {
      const auto open = source.find('(', i);
      if (open == std::string::npos) break;
      std::string close = ")";
      close.append(source, i + 2, open - i - 2).append("\"");
      const auto end = source.find(close, open);
      i = end == std::string::npos ? source.size() : end + close.size();
      code += "\"\"";
    } else if (source[i] == '"') {
      for (++i; i < source.size() && source[i] != '"'; ++i) {
        if (source[i] == '\\') ++i;
      }
      ++i;
      code += "\"\"";
    } else {
      if (source[i] == '\n') {
        line_start = true;
      } else if (source[i] != ' ') {
        line_start = false;
      }
      code += source[i++];
    }
  }
  return code;
}

std::vector<std::string> violations(const Table& table, const std::string& path,
                                    const std::string& source) {
  static const std::regex include("^\\s*#\\s*include\\s*([<\"])([^>\"]+)[>\"]");
  const std::string room = room_of(path);
  if (room.empty()) return {};  // lockstep.h, the front door, sees every room
  if (!table.contains(room)) return {path + ": the room " + room + " is not in the table"};
  const auto& allowed = table.at(room);

  std::vector<std::string> found;
  std::istringstream lines(code_of(source));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto report = [&](const std::string& what) {
      found.push_back(path + ":" + std::to_string(number) + ": " + what);
    };
    std::smatch match;
    if (std::regex_search(line, match, include)) {
      const std::string header = match[2];
      const std::string target = room_of(header);
      if (!target.empty() && !allowed.contains(target)) {
        report("no arrow from " + room + " to " + target + " (" + header + ")");
      } else if (target == "device" && kDeviceFree.contains(room)) {
        report(room + " must not know of devices (" + header + ")");
      } else if (target.empty() && header == "lockstep/lockstep.h" && room != "cli") {
        report("the front door is for users, not for rooms");
      } else if (target.empty() && kBackendFree.contains(room) &&
                 std::regex_search(header, kBackendHeader)) {
        report(room + " must not know of a backend (" + header + ")");
      } else if (target.empty() && room != "comm" && std::regex_search(header, kWireHeader)) {
        report("only comm knows how bytes get to other workers (" + header + ")");
      }
      continue;
    }
    if (room == "cli") continue;
    for (const Forbidden& rule : kOnlyInCli) {
      if (path == kShowsProgress && rule.what == kWrites) continue;
      if (path == kReadsVariables && rule.what == kReads) continue;
      if (kFork.contains(path) && rule.what == kEnds) continue;
      if (std::regex_search(line, rule.pattern)) report(rule.what);
    }
  }
  return found;
}

std::map<std::string, std::set<std::string>> linked_rooms(const std::string& cmake) {
  static const std::regex call("lockstep_room\\(\\s*(\\w+)([^)]*)\\)");
  static const std::set<std::string> keywords = {"SOURCES", "LINKS"};
  std::map<std::string, std::set<std::string>> rooms;
  for (std::sregex_iterator it(cmake.begin(), cmake.end(), call), end; it != end; ++it) {
    auto& links = rooms[(*it)[1]];
    std::istringstream words((*it)[2]);
    bool includes = false;
    for (std::string word; words >> word;) {
      if (word == "INCLUDES") {
        includes = true;
      } else if (keywords.contains(word)) {
        includes = false;
      } else if (includes) {
        links.insert(word);
      }
    }
  }
  return rooms;
}

}  // namespace lockstep::arrows

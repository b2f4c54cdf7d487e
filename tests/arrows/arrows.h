// Reads the rooms' table of docs/architecture.md and checks source text against it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep::arrows {

// For each room, every room that it may include: its row, base and profile, itself, and what lies
// behind those.
using Table = std::map<std::string, std::set<std::string>>;

// The table out of the document's text; std::runtime_error where there is none, or where a row
// names a room that has no row above it.
Table parse_table(const std::string& document);

// Source text without comments and without the contents of string literals. Include lines keep
// their paths.
std::string code_of(const std::string& source);

// What is wrong with one file, a line each; empty where nothing is. `path` is relative to the
// repository: "lockstep/graph/graph.h".
std::vector<std::string> violations(const Table& table, const std::string& path,
                                    const std::string& source);

// The lockstep_room(name INCLUDES …) calls of lockstep/CMakeLists.txt.
std::map<std::string, std::set<std::string>> linked_rooms(const std::string& cmake);

}  // namespace lockstep::arrows

// Reads the table of rooms in docs/architecture.md and checks source text against it.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

namespace lockstep::arrows {

// For each room, every room that it may include: itself, base and profile, the rooms in its row,
// and whatever those may include.
using Table = std::map<std::string, std::set<std::string>>;

// Reads the table from the document's text. Throws std::runtime_error if there is no table, or if
// a row names a room that has no row above it.
Table parse_table(const std::string& document);

// Source text without comments and without the contents of string literals. Include lines keep
// their paths.
std::string code_of(const std::string& source);

// What is wrong with one file, one entry per violation. `path` is relative to the repository:
// "lockstep/graph/graph.h".
std::vector<std::string> violations(const Table& table, const std::string& path,
                                    const std::string& source);

// The lockstep_room(name INCLUDES …) calls of lockstep/CMakeLists.txt.
std::map<std::string, std::set<std::string>> linked_rooms(const std::string& cmake);

}  // namespace lockstep::arrows

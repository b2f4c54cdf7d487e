// Certificates for tests, of authorities of their own.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "lockstep/cluster/tls_files.h"

namespace lockstep {

// Certificates of an authority, made with the program openssl.
class Certificates {
 public:
  Certificates() {
    folder_ = std::filesystem::temp_directory_path() /
              ("lockstep-certificates-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }

  TlsFiles make(const std::string& authority, const std::string& name) {
    const std::string dir = folder_.string() + "/";
    if (!std::filesystem::exists(dir + authority + ".pem")) {
      run("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=" +
          authority + " -keyout " + dir + authority + ".key -out " + dir + authority + ".pem");
    }
    std::ofstream(dir + "names") << "subjectAltName=DNS:localhost,IP:127.0.0.1\n";
    run("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=" + name +
        " -keyout " + dir + name + ".key -out " + dir + name + ".csr");
    run("x509 -req -days 2 -in " + dir + name + ".csr -CA " + dir + authority + ".pem -CAkey " +
        dir + authority + ".key -CAcreateserial -extfile " + dir + "names -out " + dir + name +
        ".pem");
    return {.certificate = dir + name + ".pem",
            .key = dir + name + ".key",
            .authority = dir + authority + ".pem"};
  }

 private:
  static void run(const std::string& arguments) {
    ASSERT_EQ(std::system(("openssl " + arguments + " >/dev/null 2>&1").c_str()), 0) << arguments;
  }
  std::filesystem::path folder_;
};

}  // namespace lockstep

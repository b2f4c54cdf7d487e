// Functions for Dataset::map_into that read images.
//
//   records.map_into(decode_images(options), {.spec = decoded_spec(options, rest), …})
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/image/reader.h"

namespace lockstep {

// The element {image, rest…} that these functions write.
std::vector<ElementSpec> decoded_spec(const ImageReaderOptions& options,
                                      std::vector<ElementSpec> rest);

// Takes elements {bytes of a file (u8), rest…}.
WriteFunction decode_images(const ImageReaderOptions& options);

// Takes elements {number of a file (i64), rest…} and reads files[number].
WriteFunction read_image_files(std::vector<std::filesystem::path> files,
                               const ImageReaderOptions& options);

}  // namespace lockstep

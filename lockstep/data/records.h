// Files of records as data sets: TFRecord, text and CSV, plain or gzip, read one after the other or
// interleaved. Errors about damaged data name the file and the record.
#pragma once

#include <filesystem>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/data/sources/csv.h"
#include "lockstep/data/sources/example.h"
#include "lockstep/data/sources/text.h"
#include "lockstep/data/sources/tfrecord.h"

namespace lockstep {

struct RecordFilesOptions {
  // Files read in turn, one record from each. More than one mixes the files before any shuffle and
  // allows several to be read at once.
  int cycle = 1;
  int parallel = 1;  // files of the cycle read at once, or AUTOTUNE
  OnError on_error = OnError::Raise;
};

// The files in a folder whose names end so, sorted. DataError if there are none.
std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder,
                                            const std::vector<std::string>& endings);

// {record}: u8, of any length.
Dataset read_tfrecords(std::vector<std::filesystem::path> files, RecordFilesOptions options = {},
                       TFRecordOptions format = {});
// {line}: u8, of any length.
Dataset read_text_lines(std::vector<std::filesystem::path> files, RecordFilesOptions options = {},
                        TextOptions format = {});
// One component for each one in the format. Opens the first file immediately to read its columns.
Dataset read_csv(std::vector<std::filesystem::path> files, RecordFilesOptions options = {},
                 CsvOptions format = {});

// The features of tf.Examples in TFRecord files, as tensors. `parallel` also sets how many records
// are parsed at once.
Dataset read_examples(std::vector<std::filesystem::path> files, std::vector<FeatureSpec> features,
                      RecordFilesOptions options = {}, TFRecordOptions format = {});

namespace datasets {

// {encoded bytes, i32 label} from TFRecord files of tf.Examples with an encoded JPEG or PNG
// ("image/encoded", "image" or "image_raw") and an integer ("image/class/label" or "label"), as
// TensorFlow Datasets writes them. DataError if the first record has no such pair.
Dataset image_examples(std::vector<std::filesystem::path> files, RecordFilesOptions options = {});

}  // namespace datasets
}  // namespace lockstep

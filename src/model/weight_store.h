// The weights of a model as ggml tensors, each in the buffer that suits its use.
//
//   matrices of products  -> ggml's fast layouts (repacked buffers) where ggml has one for the type
//                            and shape, else in the mapped file
//                            (widened_weights.h: some types get one by another type)
//   embedding rows        -> the mapped file
//   vectors               -> converted to f32 in an ordinary buffer (norms, biases: small)
//
// Tensors are first asked for, one by one; upload() then allocates and fills all of them. A matrix
// may be glued from several file tensors that share their input (queries, keys, values), so that
// one product computes them all: fewer nodes, and the input is quantised once.
//
// Thread: one, until upload() has returned; then immutable.
// Owns: the file, ggml contexts and buffers. Tensors die with it.
#pragma once

#include <ggml-cpp.h>

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/gguf_file.h"

namespace karez {

class WeightStore {
 public:
  WeightStore(GgufFile file, bool repack);

  // f32 [length], or nullptr for an absent optional one.
  // Fails: kCorruption if the tensor is missing or its shape is another one.
  Expected<ggml_tensor*> vector(const std::string& name, std::int64_t length);
  Expected<ggml_tensor*> optional_vector(const std::string& name, std::int64_t length);
  // f32 [parts: sum of repeat][length]: each named vector repeated, for norms of several heads.
  struct Repeated {
    std::string name;
    int repeat;
  };
  Expected<ggml_tensor*> repeated_vectors(std::span<const Repeated> parts, std::int64_t length);
  // f32 [sum of lengths]; an absent part is zero. nullptr if all are absent.
  struct Part {
    std::string name;
    std::int64_t length;
  };
  Expected<ggml_tensor*> glued_vector(std::span<const Part> parts);

  // [rows, columns], used for products. Fails as vector().
  Expected<ggml_tensor*> matrix(const std::string& name, std::int64_t columns, std::int64_t rows);
  // The parts below each other in one tensor, or nullptr if they cannot be glued without losing
  // the mapped file (types differ, or ggml has no fast layout for them).
  Expected<ggml_tensor*> glued_matrix(std::span<const Part> parts, std::int64_t columns);
  // [rows, columns] of the mapped file, for row look-ups.
  Expected<ggml_tensor*> embedding(const std::string& name, std::int64_t columns,
                                   std::int64_t rows);

  // Fails: kResourceExhausted without memory.
  Expected<void> upload(const std::function<bool(double)>& progress);

  // Gives pages of the file back that row look-ups have touched, where products use a copy. They
  // come again from the file's cache when they are needed.
  void give_back_embedding_pages() const;

  const GgufFile& file() const { return file_; }

 private:
  struct Copy {  // a matrix whose bytes move into a buffer of ggml's
    ggml_tensor* tensor;
    std::vector<const GgufTensor*> sources;
  };
  struct Filled {  // an f32 tensor with values made at upload
    ggml_tensor* tensor;
    std::vector<float> values;
  };
  struct Pool {  // tensors of one buffer type
    ggml_backend_buffer_type_t type;
    ggml_context_ptr context;
    ggml_backend_buffer_ptr buffer;
  };

  Expected<const GgufTensor*> find(const std::string& name, std::int64_t columns,
                                   std::int64_t rows) const;
  Expected<std::vector<float>> read_vector(const std::string& name, std::int64_t length) const;
  ggml_tensor* add_filled(std::vector<float> values, std::int64_t columns, std::int64_t rows);
  Expected<ggml_tensor*> add_matrix(std::vector<const GgufTensor*> sources, ggml_type type,
                                    std::int64_t columns, std::int64_t rows);
  ggml_tensor* map_tensor(const GgufTensor& source, std::int64_t columns, std::int64_t rows);
  // The fast layout that takes products with a matrix of this type and shape; nullptr: none.
  ggml_backend_buffer_type_t fast_buffer_type(ggml_type type, std::int64_t columns,
                                              std::int64_t rows) const;
  // The type that a matrix of the file is computed with: its own, or a wider one with the same
  // numbers where only that has a fast layout and the extra bytes are few.
  ggml_type product_type(const GgufTensor& source);
  ggml_context* context_for(ggml_backend_buffer_type_t type);

  GgufFile file_;
  std::vector<ggml_backend_buffer_type_t> fast_types_;  // in ggml's order of preference
  std::vector<Pool> pools_;
  ggml_backend_buffer_ptr mapped_buffer_;
  ggml_context_ptr mapped_context_;
  std::vector<Copy> copies_;
  std::vector<Filled> filled_;
  std::vector<const GgufTensor*> embeddings_;  // after upload(): those that have a copy as well
  std::size_t widening_bytes_left_;
};

}  // namespace karez

# -fsanitize for the whole build, ours and GoogleTest's headers alike.
if(KAREZ_SANITIZE)
  add_compile_options(-fsanitize=${KAREZ_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KAREZ_SANITIZE})
  if(KAREZ_SANITIZE MATCHES "undefined")
    add_compile_options(-fno-sanitize-recover=undefined)
  endif()
endif()

# karez_optimise_arithmetic(TARGET): the sanitizer presets compile without optimisation, which is fast;
# targets that compute much are worth some.
function(karez_optimise_arithmetic target)
  if(KAREZ_SANITIZE)
    target_compile_options(${target} PRIVATE -O1)
  endif()
endfunction()
